//go:build !unix

package toolexecutor

import "os/exec"

// Without process groups the program itself is ended, and what it has started is not.

func ownGroup(*exec.Cmd) {}

func endGroup(cmd *exec.Cmd) error { return cmd.Process.Kill() }

func killGroup(*exec.Cmd) {}
