package indextest_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/indextest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestIndex(t *testing.T) {
	indextest.Run(t, func(t testing.TB) indextest.Index {
		x, err := kvindex.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}, nil)
}

func TestIndexWithBudget(t *testing.T) {
	indextest.Run(t, func(t testing.TB) indextest.Index {
		x, err := kvindex.New(&kvindex.Options{MaxBytes: 16 << 20})
		if err != nil {
			t.Fatal(err)
		}
		return x
	}, &indextest.Options{GPUOnly: true, Steps: 500})
}

func TestReference(t *testing.T) {
	indextest.Run(t, func(testing.TB) indextest.Index { return indextest.NewReference() }, nil)
}
