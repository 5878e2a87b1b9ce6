//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// ownGroup starts a program as the leader of a process group, so that what it starts can be ended with it, and so that
// ctrl-C reaches this process alone.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
