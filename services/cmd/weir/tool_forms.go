package main

import (
	"strings"

	"github.com/weirkeeper/weir/events"
)

// formsOf says what is shown in place of the values of a tool's calls, and by what it is made. What cannot be read is told so:
// it shows nothing.
func formsOf(m events.Manifest) (list [][2]string) {
	const unreadable = "cannot be read: nothing is shown"
	preview, err := events.ParsePreviewForm(m.Preview)
	switch {
	case err != nil:
		list = append(list, [2]string{"preview", "cannot be read: there is none"})
	case preview != nil && preview.Go:
		list = append(list, [2]string{"preview", byGo})
	case preview != nil:
		list = append(list, [2]string{"preview", preview.Template})
	}
	told, err := events.ParseForm(m.ToModelOutput)
	switch {
	case err != nil:
		list = append(list, [2]string{"model is told", "the result: its map cannot be read"})
	case told != nil:
		list = append(list, [2]string{"model is told", formText(told)})
	}
	shown, err := events.ParseTransform(m.Transform)
	if err != nil {
		return append(list, [2]string{"display", unreadable}, [2]string{"transcript", unreadable})
	}
	for _, target := range events.Targets() {
		if forms := shown.Of(target); forms != nil {
			list = append(list, coverOf(target, forms)...)
		}
	}
	return list
}

// coverOf says what a target is shown, a phase a line: of those that have no form, nothing.
func coverOf(target events.Target, forms *events.Forms) (list [][2]string) {
	var hidden []string
	for _, p := range events.Phases() {
		if f := forms.Of(p); f != nil {
			list = append(list, [2]string{string(target), string(p) + ": " + formText(f)})
		} else {
			hidden = append(hidden, string(p))
		}
	}
	if len(hidden) > 0 {
		list = append(list, [2]string{string(target), "hidden: " + strings.Join(hidden, ", ")})
	}
	return list
}

// byGo is a form that is a function of the tool's code.
const byGo = "a function of its hosts"

func formText(f *events.Form) string {
	if f.Go {
		return byGo
	}
	return "jq " + f.JQ
}
