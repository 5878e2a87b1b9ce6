// Package schemas holds the JSON Schemas of everything that Weir writes: one per event type, named as the type without
// its prefix, and those of what its buckets and its configuration hold. Programs in other languages take the files.
package schemas

import "embed"

// BaseURL begins the $id of every schema. It is a name: nothing is ever loaded from it.
const BaseURL = "https://weirkeeper.dev/schemas/"

// Common is the schema that others refer to.
const Common = "common.json"

// FS holds every schema.
//
//go:embed *.json
var FS embed.FS
