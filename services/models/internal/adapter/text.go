package adapter

import "encoding/json"

// Text is a string that may also come as null, as a number, or as a list of parts with texts. What has no text in it
// is empty rather than an error: one odd field must not cost a turn.
type Text string

// UnmarshalJSON reads any of the forms.
func (t *Text) UnmarshalJSON(b []byte) error {
	switch b[0] {
	case '"':
		return json.Unmarshal(b, (*string)(t))
	case '[':
		var parts []struct {
			Text string `json:"text"`
		}
		if json.Unmarshal(b, &parts) == nil {
			for _, p := range parts {
				*t += Text(p.Text)
			}
		}
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		*t = Text(b)
	}
	return nil
}
