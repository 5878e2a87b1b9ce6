package events

import (
	"encoding/json"
	"strings"
	"testing"
)

// Templates show arguments as they are, numbers digit by digit.
func TestB8_32TemplatesShowArgumentsAsTheyAre(t *testing.T) {
	t.Parallel()
	const args = `{"amount":612.50,"big":9007199254740993,"id":"o-1","zero":0.0,"tags":["a","b"],"who":{"name":"Ann","n":null},
		"empty":[],"on":true,"html":"<b>&","dashed-key":1e3}`
	for template, want := range map[string]string{
		`refund {{.amount}} EUR for {{.id}}`:                                                "refund 612.50 EUR for o-1",
		`{{.big}} {{.html}} {{.on}} {{.tags}}`:                                              `9007199254740993 <b>& true ["a","b"]`,
		`{{.who.name}}{{.who.n}}{{.who}}`:                                                   `Annnull{"n":null,"name":"Ann"}`,
		`{{if .zero}}a{{else if .on}}b{{end}}{{if .none}}c{{else}}d{{end}}`:                 "bd",
		`{{range $i, $x := .tags}}{{$i}}={{$x}},{{end}}{{range .empty}}{{else}}none{{end}}`: "0=a,1=b,none",
		`{{range $k, $v := .who}}{{$k}}:{{$v}} {{end}}`:                                     "n:null name:Ann ",
		`{{with .who}}{{.name}} {{$.id}}{{end}}`:                                            "Ann o-1",
		`{{index . "dashed-key"}} {{index .tags 1}} {{len .tags}} {{len .id}}`:              "1e3 b 2 3",
		`{{if gt .amount 500}}much{{end}}{{if eq .amount 612.5}} exact{{end}}`:              "much exact",
		`{{if and .on (not .zero)}}x{{end}}{{if or .none .id}}y{{end}}`:                     "xy",
		`{{$n := .amount}}{{with .who}}{{$n}}{{end}}{{/* nothing */ -}}  !`:                 "612.50!",
		`{{range .tags}}{{if eq . "b"}}{{break}}{{end}}{{.}}{{continue}}z{{end}}`:           "a",
		``: "",
	} {
		p, err := RenderPreview(template, nil, json.RawMessage(args))
		if err != nil || p.Text != want || p.Truncated {
			t.Errorf("%s: %q, %v, want %q", template, p.Text, err, want)
		}
	}
}

// What a template may not do, and what the arguments lack, makes no preview.
func TestB8_32TemplatesFail(t *testing.T) {
	t.Parallel()
	for _, template := range []string{
		`{{`, `{{.a | len}}`, `{{printf "%99999999d" 1}}`, `{{call .a}}`, `{{define "x"}}{{template "x"}}{{end}}`,
		`{{block "x" .}}{{end}}`, `{{template "x"}}`, `{{html .a}}`, `{{eq .a}}`, `{{len .a .b}}`, `{{.a .b}}`, `{{not}}`, strings.Repeat("x", 10_000),
	} {
		if _, err := ParsePreviewForm(PreviewFormOf(template)); err == nil {
			t.Errorf("%.40s is accepted", template)
		}
	}
	for _, template := range []string{
		`{{.none}}`, `{{.a.b}}`, `{{index . "none"}}`, `{{index .list 9}}`, `{{range .a}}{{end}}`, `{{range 99999999}}{{end}}`,
		`{{if gt .a 1}}{{end}}`, `{{eq .list .list}}`, `{{len 7}}`, `{{with 99999999}}{{range .}}{{end}}{{end}}`,
	} {
		if p, err := RenderPreview(template, nil, json.RawMessage(`{"a":"x","list":[1]}`)); err == nil {
			t.Errorf("%s gives %q", template, p.Text)
		}
	}
	if _, err := RenderPreview("x", nil, json.RawMessage(`{"a":1,"a":2}`)); err == nil {
		t.Error("ambiguous arguments are shown")
	}
}

// PreviewFormOf is a template as a manifest holds it.
func PreviewFormOf(template string) json.RawMessage {
	raw, _ := Marshal(PreviewForm{Template: template})
	return raw
}

// A template that is made to take for ever, or much room, is stopped.
func TestB8_32HostileTemplates(t *testing.T) {
	t.Parallel()
	items := "[" + strings.TrimSuffix(strings.Repeat("1,", 20_000), ",") + "]"
	args := json.RawMessage(`{"a":` + items + `,"s":"` + strings.Repeat("x", 500_000) + `","n":1e999,"m":1e-999}`)
	for template, fails := range map[string]bool{
		`{{range .a}}{{range $.a}}{{range $.a}}{{end}}{{end}}{{end}}`:         true,
		`{{range .a}}{{range $.a}}{{.}}{{end}}{{end}}`:                        false, // cut
		`{{range .a}}{{$.s}}{{end}}`:                                          false,
		`{{range .a}}{{if eq $.s $.s}}{{end}}{{end}}`:                         true,
		`{{range .a}}{{len $.s}}{{end}}`:                                      true,
		`{{range .a}}{{if lt $.n $.m}}{{end}}{{end}}`:                         true,
		strings.Repeat(`{{range $.a}}`, 300) + strings.Repeat(`{{end}}`, 300): true,
	} {
		p, err := RenderPreview(template, nil, args)
		if (err != nil) != fails || !fails && (!p.Truncated || len(p.Text) > MaxPreviewText) {
			t.Errorf("%.60s: %d bytes, truncated %v, %v", template, len(p.Text), p.Truncated, err)
		}
	}
}

// Secret fields are not shown by a template, and nothing of them can be asked for.
func TestB8_32TemplatesHideSecrets(t *testing.T) {
	t.Parallel()
	s, err := CompileSchema([]byte(`{"properties":{"key":{"type":"string","writeOnly":true},"card":{"x-weir-secret":true,"properties":{"no":{}}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	args := json.RawMessage(`{"key":"canary","card":{"no":"4242"},"id":"o-1"}`)
	p, err := RenderPreview(`{{.id}} {{.key}} {{.card}} {{.}} {{if eq .key "canary"}}leak{{end}}`, s, args)
	if err != nil || strings.Contains(p.Text, "canary") || strings.Contains(p.Text, "4242") || strings.Contains(p.Text, "leak") {
		t.Errorf("%q, %v", p.Text, err)
	}
	if _, err := RenderPreview(`{{.card.no}}`, s, args); err == nil {
		t.Error("a part of a secret is shown")
	}
}

func TestB8_32PreviewsAreBounded(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ä", MaxPreview)
	raw, err := Marshal(long)
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]Preview{
		"text": {Text: long}, "json": {JSON: raw}, "text of a host": TextPreview(long, MaxPreview), "json of a host": JSONPreview(raw),
	} {
		b := p.Bounded()
		if len(b.Text) > MaxPreview || len(b.Text) < MaxPreview-4 || !b.Truncated || b.JSON != nil || !json.Valid(b.Encoded()) {
			t.Errorf("%s: %d bytes, %+.40v", name, len(b.Text), b)
		}
	}
	for _, bad := range []Preview{{Failed: true, Text: "x"}, {JSON: json.RawMessage(`{"a":1,"a":2}`)}} {
		if got := string(bad.Bounded().Encoded()); got != `{"failed":true}` {
			t.Errorf("%+v became %s", bad, got)
		}
	}
}

func TestLastWords(t *testing.T) {
	t.Parallel()
	if w := LastWordsOf(" \n"); w != nil {
		t.Errorf("nothing was said: %+v", w)
	}
	if w := LastWordsOf("I refund it."); w == nil || *w != (LastWords{Text: "I refund it."}) {
		t.Errorf("%+v", w)
	}
	long := strings.Repeat("x", MaxLastWords-1) + "äöü"
	w := LastWordsOf(long)
	if !w.Truncated || len(w.Text) != MaxLastWords-1 || w.Size != len(long) || w.Digest != Digest([]byte(long)) {
		t.Errorf("%d bytes, %+v", len(w.Text), w.Truncated)
	}
}
