package discovery_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/stator-go/stator/discovery"
)

// TestFileScript runs testdata/file.txt: what happens to a file, and what its
// source says at the next look. -rewrite writes the answers anew.
//
//	write             the input becomes the file's content
//	remove            the file goes away
//	look after=DUR    the clock moves on and the source looks; prints the update
//	state             prints the folded list and its health
func TestFileScript(t *testing.T) {
	l := watchFile(t, discovery.FileOptions{Remind: 10 * time.Second})
	begun := false
	datadriven.RunTest(t, "testdata/file.txt", func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "write":
			l.write(d.Input)
			return ""
		case "remove":
			if err := os.Remove(l.path); err != nil {
				d.Fatalf(t, "%v", err)
			}
			return ""
		case "look":
			if !begun {
				begun = true
				return l.show(l.see())
			}
			after := "1s"
			if d.HasArg("after") {
				d.ScanArgs(t, "after", &after)
			}
			dur, err := time.ParseDuration(after)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			return l.show(l.later(dur))
		case "state":
			var b strings.Builder
			for _, w := range l.state.Workers() {
				fmt.Fprintf(&b, "%s %s\n", w.Name, w.Endpoints.HTTP)
			}
			age, err := l.state.Health()
			fmt.Fprintf(&b, "ready %v, age %v, fault %v\n", l.state.Ready(), age, err != nil)
			return b.String()
		}
		d.Fatalf(t, "unknown command %s", d.Cmd)
		return ""
	})
}

// show writes an update on a few lines, with the file's path left out.
func (l *look) show(u *discovery.Update) string {
	if u == nil {
		return "nothing\n"
	}
	var b strings.Builder
	if u.Snapshot {
		b.WriteString("snapshot\n")
	}
	for _, w := range u.Put {
		fmt.Fprintf(&b, "put %s %s\n", w.Name, w.Endpoints.HTTP)
	}
	for _, name := range u.Gone {
		fmt.Fprintf(&b, "gone %s\n", name)
	}
	if u.Err != nil {
		fmt.Fprintf(&b, "age %v: %s\n", u.Age, strings.ReplaceAll(u.Err.Error(), l.path, "PATH"))
	}
	if b.Len() == 0 {
		return "fresh again\n"
	}
	return b.String()
}
