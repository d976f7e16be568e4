package discoverytest

import (
	"context"
	"errors"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stator-go/stator/discovery"
)

// deaf does not heed its context.
type deaf struct{}

func (deaf) Watch(context.Context) iter.Seq2[discovery.Update, error] {
	return func(yield func(discovery.Update, error) bool) {
		yield(discovery.Update{Snapshot: true, Put: workers(3)}, nil)
		time.Sleep(time.Hour)
	}
}

// A source that does not end costs the wait of one case, not of all.
func TestStopsAfterEndlessSequence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, ran := allCases(), 0
		rest := untilEndless(all, func(c Case) error {
			ran++
			return c.Check(&Store{Source: deaf{}}, time.Minute)
		})
		if ran != 1 || len(rest) != len(all)-1 {
			t.Errorf("%d cases ran and %d of %d were left out", ran, len(rest), len(all))
		}
		time.Sleep(2 * time.Hour) // of the bubble: the sequence ends
	})
	if rest := untilEndless(allCases(), func(Case) error { return errors.New("another") }); rest != nil {
		t.Errorf("%d cases left out for a fault that is no endless sequence", len(rest))
	}
}

func TestFaultsShowWhatDiffers(t *testing.T) {
	other := rich()
	other.Ranks, other.Endpoints, other.Labels = 3, discovery.Endpoints{HTTP: "http://h"}, nil
	for _, c := range []struct{ got, want string }{
		{
			difference([]discovery.Worker{worker(0, 1), rich()}, []discovery.Worker{worker(0, 2), other}),
			`worker "w0": Incarnation is "1", want "2"
worker "rich": Ranks is 2, want 3
worker "rich": Endpoints is {"http":"https://host.example:8443/base","events":"tcp://10.0.0.1:5557","replay":"tcp://[::1]:5600","transfer":"10.0.0.1:7000"}, want {"http":"http://h"}
worker "rich": Labels is {"empty":"","zone":"a"}, want null`,
		},
		{difference(workers(2), workers(3)[1:]), `workers are ["w0","w1"], want ["w1","w2"]`},
		{difference(nil, workers(1)), `workers are [], want ["w0"]`},
		{
			show(discovery.Update{Snapshot: true, Put: workers(1), Gone: []string{"x"}, Age: time.Second, Err: errors.New("cut")}),
			`snapshot, put [{"name":"w0","incarnation":"1","endpoints":{"http":"http://127.0.0.1:9000"}}], gone ["x"], age 1s, err "cut"`,
		},
		{show(discovery.Update{}), "an empty update"},
	} {
		if c.got != c.want {
			t.Errorf("have\n%s\nwant\n%s", c.got, c.want)
		}
	}
}
