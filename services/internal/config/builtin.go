package config

import (
	"maps"
	"slices"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/tools"
)

// addBuiltins finds the built-in tools that agents of the file name and that the file does not define itself. They run in
// the default pool; a file that names pools without it leaves them to workers written in Go.
func (f *File) addBuiltins() {
	if !slices.Contains(f.Pools, events.DefaultPool) {
		return
	}
	all := tools.Builtins()
	for _, a := range f.Agents {
		for _, id := range a.Tools {
			if all[id] != nil && !f.defines(id) && !slices.Contains(f.Builtins, id) {
				f.Builtins = append(f.Builtins, id)
			}
		}
	}
	slices.Sort(f.Builtins)
}

func (f *File) defines(id string) bool {
	return slices.ContainsFunc(f.Tools, func(t ToolDef) bool { return t.Manifest.ID == id })
}

// builtins are the manifests of the built-in tools of the file, as their hosts register them.
func (f *File) builtins() (list []events.Manifest) {
	all := tools.Builtins()
	for _, id := range f.Builtins {
		list = append(list, all[id].Manifest())
	}
	return list
}

func builtinIDs() []string { return slices.Sorted(maps.Keys(tools.Builtins())) }

// needsPool says why a tool that is built in is not to be had all the same.
func (f *File) needsPool(id string) string {
	if tools.Builtins()[id] == nil || slices.Contains(f.Pools, events.DefaultPool) {
		return ""
	}
	return ` (the built-in one runs in the pool "default": name it in pools)`
}
