package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/jetstream"
)

func newKeysCommand(a *app) *cobra.Command {
	return parent(&cobra.Command{Use: "keys", Short: "Make keys of gates and principals"}, newNewKeyCommand(a))
}

func newNewKeyCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "new FILE", Short: "Make a key pair", Args: cobra.ExactArgs(1),
		Long: `Make a key pair that signs: for a gate, or for a principal. The file holds the secret half, and only its owner may
read it; a file that is there is never replaced. What is printed is the public half: for --gate-public-key of planners and
executors, or for the principal in weir.yaml.

JSON: {"publicKey", "file"}.`,
		Example: "  weir keys new gate.nk\n  weir serve approval --gate-key gate.nk\n  weir serve tool-executor --gate-public-key U…",
		RunE:    func(_ *cobra.Command, args []string) error { return a.newKey(args[0]) },
	}
}

func (a *app) newKey(path string) error {
	key, err := jetstream.NewKey()
	if err != nil {
		return err
	}
	if err := jetstream.SaveKey(path, key); err != nil {
		return err
	}
	return a.print(struct {
		PublicKey string `json:"publicKey"`
		File      string `json:"file"`
	}{key.Public, path}, func(w io.Writer) { _, _ = io.WriteString(w, key.Public+"\n") })
}
