package main

import (
	"os"
	"testing"

	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
)

// asProgram turns the test binary into the program, for commands that start other processes of it.
const asProgram = "WEIR_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	switch os.Getenv(asProgram) {
	case "":
	case asServer:
		serverMain()
	default:
		main()
	}
	if err := os.Setenv(asProgram, "1"); err != nil { // of processes that tests start
		panic(err)
	}
	jetstreamtest.Main(m)
}
