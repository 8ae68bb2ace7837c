package port

import (
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// Commands are entries of a queue whose reader is the device process; an application posts them
// through a lane of its own. Their flags say which they are, and nothing else may be set.
const (
	sendFlags    = cq.FlagSend | cq.FlagMsg
	returnFlags  = cq.FlagFrame
	reclaimFlags = cq.FlagFrame | cq.FlagClaim
)

// SendCommand asks for n bytes at payload, in a region that the device process knows, to be sent to
// the address with number to of the port's address vector. The bytes must stay as they are until
// the completion, which carries the context.
func SendCommand(context uint64, payload shm.Ref, n int, to cq.Addr) cq.Entry {
	return cq.Entry{Context: context, Flags: sendFlags, Len: uint64(n), Buf: payload, Src: cq.From(to)}
}

// ReturnCommand gives back the frame of a receive completion. It names the completion's sequence,
// so that a return which comes twice, or after the frame was used again, is harmless. Whoever posts
// it before releasing the completion leaves no loan behind when killed: the successor gets the
// completion again, and returns the frame, for the first or the second time.
func ReturnCommand(e *cq.Entry) cq.Entry {
	return cq.Entry{Flags: returnFlags, Buf: e.Buf, Data: uint64(e.Meta.Seq()),
		Meta: cq.MetaNoContext}
}

// ReclaimCommands returns what gives back the frames whose completions a dead reader of queue name
// took out of it and did not return. They would be missing for ever, and a reader that died with
// all of them in its hands would leave none to receive into. Its successor calls this after
// cq.Adopt and before its first read, since what it reads itself is not to be given back, and posts
// the commands when it likes. region is the number of the region of the frames.
func ReclaimCommands(d *shm.Dir, name string, region uint16) ([]cq.Entry, error) {
	const op = "reclaim frames of"
	i, err := cq.Inspect(d, name)
	if err != nil {
		return nil, fault(op, name, err, "")
	}
	defer i.Close()
	s, err := i.Snapshot()
	if err != nil {
		return nil, fault(op, name, err, "")
	}
	// Which lane is the device's does not matter: it does not know the others.
	var out []cq.Entry
	for _, l := range s.Lanes {
		if !l.Own && l.Err == nil {
			out = append(out, reclaimCommand(region, l.Row, l.Level.Head))
		}
	}
	return out, nil
}

// reclaimCommand gives back all frames of a region that were loaned by completions of a lane before
// the one with index head.
func reclaimCommand(region uint16, lane int, head uint64) cq.Entry {
	return cq.Entry{Flags: reclaimFlags, Len: uint64(lane), Buf: shm.MakeRef(region, 0),
		Data: uint64(uint32(head)), Meta: cq.MetaNoContext}
}
