package endpoint_test

import (
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
)

func TestMain(m *testing.M) {
	shmtest.Main(m, map[string]func(){"holder": holder, "closer": closer,
		"event reader": eventReader})
}
