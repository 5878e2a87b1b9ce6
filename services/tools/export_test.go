package tools

// NewWebFetch makes a web_fetch over another network.
var NewWebFetch = newWebFetch
