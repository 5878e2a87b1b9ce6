//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package embedded

import (
	"os"
	"syscall"
)

// lock fails at once when another open file holds the lock, in this process too.
func lock(f *os.File) error {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}
