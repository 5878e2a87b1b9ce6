package adapter

import "github.com/weirkeeper/weir/services/agent"

// Told is what a model is told first, where the schema of its answer can be told it in no other way.
func Told(req agent.ModelRequest) string {
	if len(req.OutputSchema) == 0 {
		return req.Instructions
	}
	told := req.Instructions
	if told != "" {
		told += "\n\n"
	}
	return told + "When you answer without calling a tool, answer with one JSON value that fits this JSON Schema, and with nothing else:\n" +
		string(req.OutputSchema)
}

// isObject reports whether a schema is one of objects.
func isObject(schema []byte) bool {
	o, err := ParseObject(schema)
	kind, _ := o.Get("type")
	return err == nil && string(kind) == `"object"`
}
