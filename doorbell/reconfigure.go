package doorbell

// Reconfigure replaces what is known of a lane, whose state stays.
func (b *Bell) Reconfigure(bit int, c LaneConfig) {
	if !b.Knows(bit) {
		return
	}
	begins := c.ReaderPays && !b.lanes[bit].ReaderPays
	b.lanes[bit] = c
	if begins {
		b.payLate(bit)
	}
}

// payLate is for a lane whose new writer leaves it to the reader to pay. It may have published
// before that was known, and the lane may have been parked since without a barrier. What that makes
// visible has no mark of its own, so those who rely on marks are told.
func (b *Bell) payLate(bit int) {
	if b.pay() != nil {
		b.owed = true // the next Park tries again, and tells
		return
	}
	if head, tail := b.lanes[bit].Source.Level(); head != tail && b.member() {
		b.tellDomain()
	}
}
