// Command weir is Weir: it serves the services, starts and follows runs, decides the calls that wait for people, and
// looks after the streams. Type weir --help.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// commands is the table of commands; help shows them by group. A new one is a row and a file.
var commands = []row{
	{groupUse, newRunCommand},
	{groupUse, newRunsCommand},
	{groupUse, newApprovalsCommand},
	{groupUse, newGrantsCommand},
	{groupUse, newThreadsCommand},
	{groupUse, newAgentsCommand},
	{groupUse, newToolCommand},
	{groupUse, newAuditCommand},
	{groupServe, newDevCommand},
	{groupServe, newServeCommand},
	{groupServe, newStreamCommand},
	{groupServe, newApplyCommand},
	{groupServe, newRulesCommand},
	{groupServe, newKeysCommand},
	{groupServe, newTokensCommand},
	{groupServe, newDoctorCommand},
	{groupOther, newDemoCommand},
	{groupOther, newBenchCommand},
	{groupOther, newVersionCommand},
}

func main() {
	tuneGC()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], stdio{in: os.Stdin, out: os.Stdout, err: os.Stderr, lookup: os.LookupEnv})
	stop()
	os.Exit(code)
}
