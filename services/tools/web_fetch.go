package tools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/internal/egress"
)

// Bounds of a fetch.
const (
	fetchTime       = 15 * time.Second // from the first request to the last byte
	fetchRedirects  = 5
	fetchCharacters = 100_000
	fetchBytes      = 4*fetchCharacters + 4 // no charset needs more for one more character than that
)

// WebFetch fetches a page of the web: text, at most 100,000 characters of it, within 15 seconds, over at most five
// redirects. The charset is that of the content type, or that of a byte order mark.
//
// The model chooses the address, so every one is held to package egress, that of each redirect and every answer of a name
// server too: nothing but public addresses, on the ports 80 and 443. What is fetched is written by others. It is data, and
// may try to talk the model into something: let rules decide what an agent may do that reads the web.
var WebFetch = newWebFetch(publicOnly())

func publicOnly() *egress.Guard {
	guard, err := egress.New()
	if err != nil {
		panic(err) // without entries nothing can be wrong
	}
	return guard
}

type fetchInput struct {
	URL string `json:"url"`
}

// page is what was fetched.
type page struct {
	Content     string  `json:"content"`
	Truncated   bool    `json:"truncated"`
	Status      int     `json:"status"`
	StatusText  string  `json:"statusText"`
	ContentType *string `json:"contentType"`
	URL         string  `json:"url"` // after all redirects
	OK          bool    `json:"ok"`
}

func newWebFetch(guard *egress.Guard) agent.Tool {
	transport := guard.Transport()
	transport.DisableKeepAlives = true // agents share no connections
	f := fetcher{guard, transport}
	return define("web_fetch",
		"Fetch a page of the public web by its URL, and get its text as it is, HTML included, with status and content type. "+
			"It follows redirects, and cuts what is longer than 100,000 characters. Addresses inside private networks are refused.",
		f.fetch, agent.ToolOptions{
			Title: "Fetch a web page", Effect: agent.ReadOnly,
			InputSchema: schema(`{"type":"object","properties":{"url":{"type":"string","minLength":1,` +
				`"description":"The whole URL, with http:// or https://."}},"required":["url"]}`),
			OutputSchema: schema(`{"type":"object","properties":{"content":{"type":"string"},"truncated":{"type":"boolean"},` +
				`"status":{"type":"integer"},"statusText":{"type":"string"},"contentType":{"type":["string","null"]},` +
				`"url":{"type":"string"},"ok":{"type":"boolean"},"isError":{"type":"boolean"}},"required":["content"]}`),
		})
}

type fetcher struct {
	guard     *egress.Guard
	transport *http.Transport
}

// fetch gives a page, or says in words why there is none; the end of the call is the only error.
func (f fetcher) fetch(ctx context.Context, _ *agent.Call, in fetchInput) (any, error) {
	limited, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	p, err := f.get(limited, in.URL)
	switch {
	case err == nil:
		return p, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case limited.Err() != nil:
		err = fmt.Errorf("no complete answer within %s", fetchTime)
	}
	return answer{Content: "Failed to fetch URL: " + reason(err) + ".", IsError: true}, nil
}

var (
	errNotHTTP = errors.New("only HTTP and HTTPS URLs are supported")
	errInside  = errors.New("the URL leads to a private or reserved address")
)

// get follows redirects to a page.
func (f fetcher) get(ctx context.Context, text string) (page, error) {
	u, err := url.Parse(text)
	if err != nil {
		return page{}, errors.New("that is no URL")
	}
	for hop := 0; ; hop++ {
		if u.Scheme != "http" && u.Scheme != "https" {
			return page{}, errNotHTTP
		}
		if err := f.guard.CheckURL(u); err != nil {
			return page{}, err
		}
		resp, err := f.request(ctx, u)
		if err != nil {
			return page{}, err
		}
		next, err := redirect(resp)
		if next == nil && err == nil {
			return f.read(resp)
		}
		_ = resp.Body.Close()
		if err != nil {
			return page{}, err
		}
		if hop == fetchRedirects {
			return page{}, fmt.Errorf("more than %d redirects", fetchRedirects)
		}
		u = next
	}
}

// request makes one request. It tells a server nothing about the agent or the network that it comes from.
func (f fetcher) request(ctx context.Context, u *url.URL) (*http.Response, error) {
	to := *u
	to.Fragment, to.RawFragment = "", ""
	req := &http.Request{Method: http.MethodGet, URL: &to, Host: to.Host, Header: http.Header{
		"Accept":     {"text/html,text/plain,application/json,application/xml;q=0.9,*/*;q=0.8"},
		"User-Agent": {"weir"},
	}}
	resp, err := f.transport.RoundTrip(req.WithContext(ctx))
	if errors.Is(err, egress.ErrDenied) {
		return nil, errInside // and not which address inside a name has
	}
	return resp, err
}

// redirect is where an answer sends us, nil when it is the page.
func redirect(resp *http.Response) (*url.URL, error) {
	redirects := []int{
		http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect,
		http.StatusPermanentRedirect,
	}
	location := resp.Header.Get("Location")
	if location == "" || !slices.Contains(redirects, resp.StatusCode) {
		return nil, nil //nolint:nilnil // it is the page
	}
	u, err := resp.Request.URL.Parse(location)
	if err != nil {
		return nil, errors.New("a redirect to what is no URL")
	}
	return u, nil
}

// read reads the page, no more of it than is given.
func (f fetcher) read(resp *http.Response) (page, error) {
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, fetchBytes+1))
	if err != nil {
		return page{}, err
	}
	p := page{
		Status: resp.StatusCode, StatusText: statusText(resp), URL: resp.Request.URL.String(),
		OK: resp.StatusCode >= 200 && resp.StatusCode < 300, Truncated: len(body) > fetchBytes,
	}
	if kind := resp.Header.Get("Content-Type"); kind != "" {
		p.ContentType = &kind
	}
	p.Content = decodeText(body[:min(len(body), fetchBytes)], resp.Header.Get("Content-Type"))
	if short, cut := first(p.Content, fetchCharacters); cut {
		p.Content, p.Truncated = short, true
	}
	return p, nil
}

// first is the first n characters of a text.
func first(text string, n int) (string, bool) {
	for i := range text {
		if n == 0 {
			return text[:i], true
		}
		n--
	}
	return text, false
}

func statusText(resp *http.Response) string {
	if _, text, ok := strings.Cut(resp.Status, " "); ok {
		return text
	}
	return http.StatusText(resp.StatusCode)
}

// reason is why there is no page, in bounds. It does not say which name server was asked.
func reason(err error) string {
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return "the host " + dns.Name + " cannot be found"
	}
	text, _ := first(err.Error(), 300)
	return strings.TrimSuffix(text, ".")
}
