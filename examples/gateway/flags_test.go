package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/discovery"

	"github.com/stator-go/stator/internal/report"
)

func TestParse(t *testing.T) {
	c, err := parse(nil, nil)
	require.NoError(t, err)
	require.Equal(t, &config{listen: "127.0.0.1:8080", policy: "expected", compare: []string{"roundrobin"}, speed: 20, simulated: 8, drain: 10 * time.Second}, c)
	require.True(t, c.play())
	require.False(t, c.real())

	c, err = parse(strings.Fields("-engine vllm=http://a:8000/,events=tcp://a:5557,replay=tcp://a:5558 -engine vllm=https://b:1,name=bee -listen :0"), nil)
	require.NoError(t, err)
	require.Equal(t, []discovery.Worker{
		{Name: "a:8000", Engine: "vllm", Endpoints: discovery.Endpoints{HTTP: "http://a:8000", Events: "tcp://a:5557", Replay: "tcp://a:5558"}},
		{Name: "bee", Engine: "vllm", Endpoints: discovery.Endpoints{HTTP: "https://b:1"}},
	}, c.engines)
	require.InDelta(t, 1, c.speed, 0)
	require.Empty(t, c.compare)
	require.False(t, c.play())

	c, err = parse(strings.Fields("-policy dynamo:w=4 -compare roundrobin,dynamo:w=4,leastloaded -speed 2.5 -once -json -"), nil)
	require.NoError(t, err)
	require.Equal(t, []string{"roundrobin", "leastloaded"}, c.compare, "the policy that serves is not played twice")
	c, err = parse(strings.Fields("-compare none"), nil)
	require.NoError(t, err)
	require.Empty(t, c.compare)
}

func TestParseFaults(t *testing.T) {
	for args, want := range map[string]string{
		"-speed 0":                               "-speed is 0, want 0.01 to 1000",
		"-speed NaN":                             "-speed is NaN, want 0.01 to 1000",
		"-speed 1e-300":                          "-speed is 1e-300, want 0.01 to 1000",
		"-speed x":                               `invalid value "x" for flag -speed`,
		"-listen 8080":                           `-listen "8080" is no address: want host:port`,
		"-policy best":                           `policy "best":`,
		"-compare roundrobin,":                   `policy "":`,
		"-nonsense":                              "flag provided but not defined: -nonsense",
		"x":                                      `unexpected argument "x"`,
		"-engine http://a":                       "want vllm=URL",
		"-engine vllm":                           "want vllm=URL",
		"-engine sglang=http://":                 `unknown kind of engine "sglang", want vllm`,
		"-engine vllm=ftp://a":                   `"ftp://a" is no URL of the form http://host:port`,
		"-engine vllm=http://a,events=a:1":       "is no address of the form tcp://host:port",
		"-engine vllm=http://a,events=tcp://a":   "is no address of the form tcp://host:port",
		"-engine vllm=http://a,replay=tcp://a:1": "replay is of no use without events",
		"-engine vllm=http://a,role=x":           `unknown part "role", want events, replay or name`,
		"-engine vllm=http://a,name=":            "name is empty",
		"-engine vllm=http://a -engine vllm=http://a": "a second engine of the name a",
		"-engine vllm=http://a -workers w.json":       "-engine and -workers exclude each other",
		"-engine vllm=http://a -once":                 "-once ends after a played trace",
		"-workers w.json -json out.json":              "-json writes the figures of a played trace",
	} {
		_, err := parse(strings.Fields(args), nil)
		require.ErrorContains(t, err, want, args)
		require.NotContains(t, err.Error(), "\n", args)
	}
}

// What somebody wrote into a URL must not come out in a log.
func TestPasswordsAreNotTold(t *testing.T) {
	for _, engine := range []string{"vllm=http://u:secret@a:1", "vllm=ftp://u:secret@a:1", "vllm=http://u:secret@", "vllm=http://u:secret@a:x", "vllm=u:secret@a"} {
		_, err := parse([]string{"-engine", engine}, nil)
		require.Error(t, err, engine)
		require.NotContains(t, err.Error(), "secret", engine)
	}
	require.Equal(t, "http://u:xxxxx@a:1", redacted("http://u:secret@a:1"))
	require.Equal(t, "http://a:1", redacted("http://a:1"))
}

func TestHelpExplainsEachFlag(t *testing.T) {
	var b strings.Builder
	_, err := parse([]string{"-h"}, &b)
	require.ErrorIs(t, err, errHelp)
	for _, f := range []string{"listen", "engine", "workers", "policy", "compare", "trace", "speed", "once", "json"} {
		require.Contains(t, b.String(), "\n  -"+f)
		require.Regexp(t, `\n          (\[|.*)-`+f+` ?`, b.String(), "example of -"+f)
	}
	require.Contains(t, b.String(), "lmetric")
}

// Every example of the help is taken as it stands.
func TestHelpExamples(t *testing.T) {
	var b strings.Builder
	_, err := parse([]string{"-h"}, &b)
	require.ErrorIs(t, err, errHelp)
	examples := 0
	for line := range strings.Lines(b.String()) {
		example, ok := strings.CutPrefix(strings.TrimRight(line, "\n"), "          ")
		if !ok {
			continue
		}
		examples++
		if strings.HasPrefix(example, "{") {
			list, err := discovery.Decode([]byte(example))
			require.NoError(t, err, example)
			require.Len(t, list, 1)
			continue
		}
		args := strings.Fields(example)
		for i := range args {
			args[i] = strings.Trim(args[i], `"`)
		}
		_, err := parse(args, nil)
		require.NoError(t, err, example)
	}
	require.Equal(t, 10, examples)
}

func TestUnanswered(t *testing.T) {
	require.NoError(t, unanswered([]report.Row{{Requests: 3}, {Requests: 3}}))
	require.ErrorContains(t, unanswered([]report.Row{{Errors: 1}, {Errors: 2}}), "3 requests were not answered")
}
