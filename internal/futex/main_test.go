package futex

import (
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
)

func TestMain(m *testing.M) { shmtest.Main(m, nil) }
