package device_test

import (
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
)

// roles are what the test binary does when it is started as a child.
var roles = map[string]func(){}

func TestMain(m *testing.M) { shmtest.Main(m, roles) }
