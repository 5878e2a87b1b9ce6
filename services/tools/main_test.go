package tools_test

import (
	"testing"

	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
)

func TestMain(m *testing.M) { jetstreamtest.Main(m) }
