package doorbell_test

import (
	"errors"
	"testing"
	"time"

	"github.com/shmring/shmring/doorbell"
)

// TestOneWaiterPerSet: the explorer shows that a second waiter on one set loses a wake, so it is
// refused.
func TestOneWaiterPerSet(t *testing.T) {
	arm := new(doorbell.Arm)
	hints, err := doorbell.MapDomain(make([]byte, doorbell.DomainBytes(1)), 1)
	if err != nil {
		t.Fatal(err)
	}
	d := doorbell.NewDomain(arm, hints, 1)
	s := d.NewSet()
	stop := make(chan struct{})
	done := make(chan error)
	go func() {
		_, err := s.Wait(nil, doorbell.Wait{Stop: func() bool {
			select {
			case <-stop:
				return true
			default:
				return false
			}
		}})
		done <- err
	}()
	for arm.Word.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	if _, err := s.Wait(nil, doorbell.Wait{}); !errors.Is(err, doorbell.ErrWaiting) {
		t.Errorf("second waiter: %v", err)
	}
	close(stop)
	d.Kick()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
