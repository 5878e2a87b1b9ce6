//go:build interop

package google_test

import (
	"testing"

	"github.com/weirkeeper/weir/services/models/google"
	"github.com/weirkeeper/weir/services/models/modeltest"
)

// TestGoogleAimock drives the adapter against a mock that others wrote from recordings of the real provider.
func TestGoogleAimock(t *testing.T) {
	t.Parallel()
	mock := modeltest.StartMock(t, "testdata/aimock.json")
	c, err := google.New(google.Config{BaseURL: mock.URL + "/v1beta", APIKey: testKey})
	if err != nil {
		t.Fatal(err)
	}
	by := modeltest.Mocked{
		Model: "gemini-2.5-flash", Options: `{"google":{"thinkingConfig":{"includeThoughts":true}}}`, Overload: 503,
	}
	mock.Drive(t, c, by)
}
