//go:build interop

package anthropic_test

import (
	"testing"

	"github.com/weirkeeper/weir/services/models/anthropic"
	"github.com/weirkeeper/weir/services/models/modeltest"
)

// TestAnthropicAimock drives the adapter against a mock that others wrote from recordings of the real provider. It
// refuses a conversation whose thinking did not come back.
func TestAnthropicAimock(t *testing.T) {
	t.Parallel()
	mock := modeltest.StartMock(t, "testdata/aimock.json")
	c, err := anthropic.New(anthropic.Config{BaseURL: mock.URL + "/v1", APIKey: testKey})
	if err != nil {
		t.Fatal(err)
	}
	by := modeltest.Mocked{
		Model: "claude-sonnet-4-5", Options: `{"anthropic":{"thinking":{"type":"enabled","budgetTokens":1024}}}`, Overload: 529, CutCall: true,
	}
	if text := mock.Drive(t, c, by); text.Signature == "" {
		t.Errorf("text: got %+v", text)
	}
	if e, _ := by.Failed(t, c, "Nobody expects this"); e.Retryable || e.Status < 400 {
		t.Errorf("no fixture: %+v", e)
	}
}
