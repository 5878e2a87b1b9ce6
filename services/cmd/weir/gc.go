package main

import (
	"os"
	"runtime/debug"
)

// gcPercent lets the heap grow to three times what is alive before it is collected. What is alive is small: a run keeps
// nothing in memory while it waits.
const gcPercent = 200

// tuneGC sets the collector's pace, unless GOGC does.
func tuneGC() {
	if _, set := os.LookupEnv("GOGC"); !set {
		debug.SetGCPercent(gcPercent)
	}
}
