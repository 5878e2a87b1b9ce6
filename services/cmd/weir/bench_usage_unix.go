//go:build unix

package main

import (
	"runtime"
	"syscall"
	"time"
)

// usage is what this process has used since its start: processor time, and the most memory at once.
func usage() (cpu time.Duration, peakBytes int64) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, 0
	}
	peakBytes = int64(u.Maxrss) //nolint:unconvert // 32 bits on some systems
	if runtime.GOOS == "linux" {
		peakBytes *= 1024
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), peakBytes
}
