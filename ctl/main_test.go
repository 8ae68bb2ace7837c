package ctl_test

import (
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
)

// roles are what the test binary does when it is started as a child. Files that are for some
// systems only add theirs.
var roles = map[string]func(){}

func TestMain(m *testing.M) { shmtest.Main(m, roles) }
