package embedded

import (
	"fmt"
	"os"
	"path/filepath"
)

// lockName is the file whose lock means "a server has this directory".
const lockName = "weir.lock"

// lockDir makes the directory, proves that it can be written and takes it until the file is closed or the
// process dies. nats-server itself takes no lock, and two servers that write the same block files destroy
// them.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, notWritable(dir, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // the operator names the directory
	if err != nil {
		return nil, notWritable(dir, err)
	}
	if err := lock(f); err != nil {
		_ = f.Close() // nothing was written
		return nil, fmt.Errorf("directory %s is in use by another server (%w): stop it, or choose another directory",
			dir, err)
	}
	return f, nil
}

func notWritable(dir string, err error) error {
	return fmt.Errorf("directory %s cannot be written (%w): change its owner or mode, or choose another", dir, err)
}
