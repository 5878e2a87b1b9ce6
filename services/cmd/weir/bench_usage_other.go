//go:build !unix

package main

import "time"

// usage is not known on this system.
func usage() (cpu time.Duration, peakBytes int64) { return 0, 0 }
