//go:build interop

package responses_test

import (
	"testing"

	"github.com/weirkeeper/weir/services/models/modeltest"
	"github.com/weirkeeper/weir/services/models/responses"
)

// TestResponsesAimock drives the adapter against a mock that others wrote from recordings of the real provider.
func TestResponsesAimock(t *testing.T) {
	t.Parallel()
	mock := modeltest.StartMock(t, "testdata/aimock.json")
	c, err := responses.New(responses.Config{BaseURL: mock.URL + "/v1", APIKey: testKey})
	if err != nil {
		t.Fatal(err)
	}
	by := modeltest.Mocked{
		Model: "gpt-5-mini", Options: `{"openai":{"reasoning":{"effort":"low","summary":"auto"}}}`, Overload: 503,
	}
	mock.Drive(t, c, by)
}
