package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// MaxModelOutput bounds what a model is told in place of a result, in bytes of its JSON.
const MaxModelOutput = 512 << 10

// ContentPart is a piece of what a model is told of a result, where that is content. Type says which fields are set.
type ContentPart struct {
	Type            string          `json:"type"`
	Text            string          `json:"text,omitempty"`            // text
	URL             string          `json:"url,omitempty"`             // image-url, file-url
	Data            string          `json:"data,omitempty"`            // image-data, file-data: base64
	MediaType       string          `json:"mediaType,omitempty"`       // image-data, file-data
	Filename        string          `json:"filename,omitempty"`        // file-data, if known
	FileID          string          `json:"fileId,omitempty"`          // file-id, image-file-id: the provider's
	ProviderOptions json.RawMessage `json:"providerOptions,omitempty"` // custom: an object by provider
}

// Types of parts of content.
const (
	ContentText        = "text"
	ContentImageURL    = "image-url"
	ContentImageData   = "image-data"
	ContentFileURL     = "file-url"
	ContentFileData    = "file-data"
	ContentFileID      = "file-id"
	ContentImageFileID = "image-file-id"
	ContentCustom      = "custom"
)

// CheckModelOutput says what is wrong with what a model is to be told in place of a result: it is a text, JSON or a list
// of parts, within [MaxModelOutput]. The texts of errors hold no value.
func CheckModelOutput(o *ModelOutput) error {
	switch {
	case o == nil:
		return errors.New("there is none")
	case len(o.Value) > MaxModelOutput:
		return fmt.Errorf("it has more than %d bytes", MaxModelOutput)
	case CheckJSON(o.Value) != nil:
		return errors.New("its value is not JSON")
	}
	switch o.Type {
	case OutputText:
		var text *string
		if json.Unmarshal(o.Value, &text) != nil || text == nil {
			return errors.New("the value of a text is no text")
		}
	case OutputJSON:
	case OutputContent:
		var parts []ContentPart
		if err := json.Unmarshal(o.Value, &parts); err != nil || len(parts) == 0 {
			return errors.New("the value of content is no list of parts")
		}
		for i, p := range parts {
			if missing := p.missing(); missing != "" {
				return fmt.Errorf("part %d: %s", i, missing)
			}
		}
	default:
		return errors.New("its type is none of text, json and content")
	}
	return nil
}

func (p ContentPart) missing() string {
	need := map[string][]string{
		ContentText: {}, ContentImageURL: {"url"}, ContentImageData: {"data", "mediaType"}, ContentFileURL: {"url"},
		ContentFileData: {"data", "mediaType"}, ContentFileID: {"fileId"}, ContentImageFileID: {"fileId"},
		ContentCustom: {"providerOptions"},
	}
	fields, known := need[p.Type]
	if !known {
		return "its type is unknown"
	}
	has := map[string]bool{
		"url": p.URL != "", "data": p.Data != "", "mediaType": p.MediaType != "", "fileId": p.FileID != "",
		"providerOptions": strings.HasPrefix(strings.TrimSpace(string(p.ProviderOptions)), "{"),
	}
	for _, field := range fields {
		if !has[field] {
			return fmt.Sprintf("a part of type %s needs %s", p.Type, field)
		}
	}
	return ""
}
