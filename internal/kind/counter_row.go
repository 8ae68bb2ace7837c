package kind

import "github.com/shmring/shmring/shm"

// Owner returns what the row says, bounded: no process has a larger number than the kernel's limit.
func (r *CounterRow) Owner() shm.Owner {
	return BoundOwner(r.Pid.Load(), r.PidNS.Load(), r.Start.Load())
}

func BoundOwner(pid, pidNS, start uint64) shm.Owner {
	return shm.Owner{PID: int(min(pid, 1<<22+1)), PIDNS: pidNS, StartTicks: start}
}

// Sitting is owner of a row that is whole and means a process that may be there, or zero.
func (r *CounterRow) Sitting() shm.Owner {
	mark, o := r.Sits()
	if mark == 0 {
		return shm.Owner{}
	}
	o.State = shm.StateOwned
	return Present(o)
}

// Sits returns who has a row, or nobody while that is being written.
func (r *CounterRow) Sits() (mark uint64, o shm.Owner) {
	mark = r.Mark.Load()
	o = r.Owner()
	if mark == 0 || r.Mark.Load() != mark {
		return 0, shm.Owner{}
	}
	return mark, o
}

// Fallen is one who died in a seat.
type Fallen struct {
	Mark  uint64
	Owner shm.Owner
}

// MostFallen bounds what a row may claim.
const MostFallen = 1 << 20

// Fallen returns the last who died in a row, and how many did with him. While that is being written
// it is nobody, and how many did before.
func (r *CounterRow) Fallen() (last Fallen, deaths uint64) {
	last = Fallen{r.FormerMark.Load(), BoundOwner(r.FormerPID.Load(), r.FormerPIDNS.Load(),
		r.FormerStart.Load())}
	deaths = r.Deaths.Load()
	if last.Mark == 0 || r.FormerMark.Load() != last.Mark {
		return Fallen{}, deaths / 2
	}
	return last, deaths/2 + deaths%2
}

// SitDown writes who has the seat from now on. The mark, which is not 0, is stored last: who sees
// it sees the rest.
func (r *CounterRow) SitDown(mark uint64, o shm.Owner) {
	r.Bury()
	r.Mark.Store(0)
	r.Pid.Store(uint64(o.PID))
	r.PidNS.Store(o.PIDNS)
	r.Start.Store(o.StartTicks)
	r.Mark.Store(mark)
}

// Bury records who died in the seat, if anybody did. It is for who has it now, and may be killed
// over it: the next one begins again. The count of deaths is twice that, and odd from before a
// record is begun until after it is written: so who finds it odd can tell by the record whether
// that one is counted.
func (r *CounterRow) Bury() {
	mark := r.Mark.Load()
	former, deaths := r.FormerMark.Load(), r.Deaths.Load()
	if mark == 0 || former == mark {
		return // he left by himself, or died before he said who he is; or it is done
	}
	if former != 0 {
		deaths += deaths % 2 // who wrote the record was killed before he said that it is whole
	}
	r.FormerMark.Store(0)
	r.Deaths.Store(deaths | 1)
	r.FormerPID.Store(r.Pid.Load())
	r.FormerPIDNS.Store(r.PidNS.Load())
	r.FormerStart.Store(r.Start.Load())
	r.FormerMark.Store(mark) // who sees it sees the rest
	r.Deaths.Store((deaths | 1) + 1)
}

// Present returns what a record says if that is somebody who may be there now.
func Present(o shm.Owner) shm.Owner {
	if alive, known := shm.ProcessAlive(o); o.State != shm.StateOwned || known && !alive {
		return shm.Owner{}
	}
	return o
}
