package bench

import (
	"cmp"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// rows are all cases: what each is called, the batches it is measured with, the command of our
// child, that of the rival, what the rival is called, its program in C, and in what else the case
// differs. A heading has what all of a bench have. The sign = stands for the name of the case, as a
// command of our child with the prefix of the bench, and == without; the program "ours" is our
// child again. Batches are numbers, or each of Options.Batches, or the ends of these with that of
// rivals that are not AF_XDP.
//
// The words are fields of benchCase. Filling a queue takes libfabric many times as long as reading
// it; sending a packet takes a hundred times as long as reading it from a ring, and a few times as
// long as from a socket of the kernel's stack: that is where only a share of a round is measured.
// A heap is an allocation of 200 MB a second in both processes, beside the messages. The processes
// of a device case work both, and the one that serves sleeps when it finds nothing to do.
//
// Readers that found nothing wait for so many PAUSE instructions before they look again. It is the
// same on both sides, and what suits the C ring best. A few make a message arrive sooner, since
// looking less often leaves the line to the writer: one way took C 222 ns with none, 188 with 1,
// 165 with 2, 145 with 4, 138 with 6, 154 with 8, 209 with 16. Many let the writer get ahead, so
// that the reader takes the line from it less often: at batch 1 C moved 56 million a second with
// none, 46 with 4, 52 with 16, 74 with 64 and 97 with 256, which is 10 us too long to be awake for;
// at batch 32 it makes no difference. Two are what a polling application should do between empty
// reads of a queue: without, a processor that runs ahead in a loop of reads has all of it to throw
// away when the entry comes. The two bare lines pause as much; the one line, which needs it less,
// does not.
const rows = `
ring:
spsc          each  =       =     c           ring      rate pauses=64
spsc-xchg     each  =       spsc  c           ring      rate pauses=64
spsc-nobell   each  =       spsc  c           ring      rate pauses=64
spsc-single   1     =       spsc  c           ring      rate pauses=64
spsc-stagger  each  spsc    spsc  c           ring      rate pauses=64 stagger
oneway        1     =       =     c           ring      halve pauses=6
spsc          each  =       =     rte_ring    rtering   rate pauses=64
oneway        1     =       =     rte_ring    rtering   halve pauses=6
oneway-line   1     oneway  line  cache line  pingpong  halve pauses=6

wake: sleeps
futex    1  =  =  futex    blocked  -
eventfd  1  =  =  eventfd  blocked  -

cq: pauses=2
read-bare          1     =        =              libfabric                libfabric  solo
read-empty         1     =        =              libfabric                libfabric  solo
read               64    =        =              libfabric                libfabric  solo share=16
eq                 1     =        =              libfabric                libfabric  solo
cntr-add           1     =        =              libfabric                libfabric  solo
cntr-read          1     =        =              libfabric                libfabric  solo
rate               each  =        =              libfabric-tagged-inject  libfabric  rate pauses=64
rate-ring          each  cq-rate  spsc           c                        ring       rate pauses=64
trip-line          1     cq-trip  line           cache line               pingpong  -
trip-lines         1     cq-trip  lines          two cache lines          pingpong  -
trip               each  =        =              libfabric-tagged-inject  libfabric  -
trip               1     =        go-chan        go-chan                  ours       sleeps
rate               1     =        go-chan-rate   go-chan                  ours       sleeps rate
sread              1     =        go-unix        go-unix                  ours       sleeps
sread              1     =        go-pipe        go-pipe                  ours       sleeps
read-empty+shared  1     =        cq-read-empty  ours-unshared            ours       solo
read+shared        64    =        cq-read        ours-unshared            ours       solo share=4
post-read+shared   1     =        cq-post-read   ours-unshared            ours       solo
post-read+none     1     =        cq-post-read   ours-unspec              ours       solo
post-read+fd       1     =        cq-post-read   ours-unspec              ours       solo
post-read+yield    1     =        cq-post-read   ours-unspec              ours       solo
sread+fd           1     =        cq-sread       ours-unspec              ours       sleeps
sread+yield        1     =        cq-sread       ours-unspec              ours       sleeps

fabric:
trip          1  =             =             libfabric-tagged-inject  libfabric  pauses=2
trip-lines    1  fabric-trip   lines         two cache lines          pingpong   pauses=2
rate          1  =             =             libfabric-tagged-inject  libfabric  rate pauses=64
trip-4k       1  =             =             libfabric-tagged-send    libfabric  pauses=2
send-1m       1  =             =             libfabric-tagged-send    libfabric  pauses=2
send-1m+pool  1  =             send-1m       libfabric-tagged-send    libfabric  pauses=2
send-1m+loan  1  =             send-1m       libfabric-tagged-send    libfabric  pauses=2
sleep         1  =             futex         futex                    blocked    sleeps
sleep         1  =             go-unix       go-unix                  ours       sleeps
conn          1  go-conn-trip  go-unix-trip  go-unix                  ours       sleeps
conn-1m       1  go-conn-1m    go-unix-1m    go-unix                  ours       sleeps
conn-sleep    1  go-conn       go-unix       go-unix                  ours       sleeps

scale: solo
empty     8,64,256  =  scale-empty+one     ours-one  ours  -
one       8,64,256  =  scale-one+one       ours-one  ours  -
all       8,64,256  =  scale-all+one       ours-one  ours  -
set       8,64,256  =  scale-set+one       ours-one  ours  -
set-same  1000      =  scale-set-same+one  ours-one  ours  -

tail: tail halve
ring        1  tail          tail  c  ring  pauses=6
queue       1  cq-tail       tail  c  ring  pauses=2
queue-heap  1  cq-tail+heap  tail  c  ring  pauses=2

xdp: wire pauses=2
drop                   each  =   =                   c-xdp       xdp       drops rate solo
drop+generic           each  =   =                   c-xdp       xdp       drops rate solo
echo                   each  =   =                   c-xdp       xdp       rate packets=2
echo+generic           each  =   =                   c-xdp       xdp       rate packets=2
drain                  each  =   =                   c-xdp       xdp       solo share=64
drain-steady           each  =   =                   c-xdp       xdp       solo share=64
trip                   1     =   =                   c-xdp       xdp       packets=2
trip+generic           1     =   =                   c-xdp       xdp       packets=2
trip-block             1     =   =                   c-xdp       xdp       sleeps packets=2
trip-block+generic     1     =   =                   c-xdp       xdp       sleeps packets=2
endpoint-drop          ends  ==  drop                c-xdp       xdp       drops rate solo
endpoint-echo          ends  ==  echo                c-xdp       xdp       rate packets=2
endpoint-drain         ends  ==  drain               c-xdp       xdp       solo share=64
endpoint-drain-steady  ends  ==  drain-steady        c-xdp       xdp       solo share=64
endpoint-trip          1     ==  trip                c-xdp       xdp       packets=2
endpoint-trip-block    1     ==  trip-block          c-xdp       xdp       sleeps packets=2
device-drop            1,32  ==  endpoint-drop       linked-in   ours      drops rate sleeps
device-reflect         1     ==  endpoint-reflect    linked-in   ours      reflect sleeps packets=2
drop                   32    =   =                   udp-mmsg    udp       drops rate solo
drain                  32    =   =                   udp-mmsg    udp       solo share=8
echo                   32    =   =                   udp-mmsg    udp       rate packets=2
trip                   1     =   =                   udp-mmsg    udp       packets=2
trip-block             1     =   =                   udp-mmsg    udp       sleeps packets=2
drop                   32    =   =                   af_packet   afpacket  drops rate solo
drain                  32    =   =                   af_packet   afpacket  solo share=8
echo                   32    =   =                   af_packet   afpacket  rate packets=2
trip                   1     =   =                   af_packet   afpacket  packets=2
trip-block             1     =   =                   af_packet   afpacket  sleeps packets=2
drop                   32    =   udpconn-drop        go-udpconn  ours      drops rate solo
drain                  32    =   udpconn-drain       go-udpconn  ours      solo share=8
echo                   32    =   udpconn-echo        go-udpconn  ours      rate packets=2
trip-block             1     =   udpconn-trip-block  go-udpconn  ours      sleeps packets=2
`

var columns = regexp.MustCompile(`  +`)

// cases returns those of a bench that the options name.
func (b Bench) cases(o Options) (cases []benchCase) {
	_, text, _ := strings.Cut(rows, "\n"+b.Name+":")
	common, text, _ := strings.Cut(text, "\n")
	for line := range strings.Lines(text) {
		f := columns.Split(strings.TrimSpace(line), -1)
		if len(f) != 7 {
			break // the next bench
		}
		c := benchCase{name: f[0], ours: f[2], rival: f[3], rivalName: f[4], source: f[5], packets: 1}
		own := strings.TrimPrefix(b.kind+"-"+c.name, "-")
		c.ours = cmp.Or(map[string]string{"=": own, "==": c.name}[c.ours], c.ours)
		c.rival = cmp.Or(map[string]string{"=": c.name}[c.rival], c.rival)
		if c.rivalOurs = c.source == "ours"; c.rivalOurs {
			c.source = ""
		}
		for word := range strings.FieldsSeq(common + " " + f[6]) {
			c.differs(word)
		}
		for _, c.batch = range batches(f[1], o.Batches) {
			cases = append(cases, c)
		}
	}
	if o.Before != "" {
		cases = before(cases)
	}
	return slices.DeleteFunc(cases, func(c benchCase) bool {
		ok, _ := path.Match(cmp.Or(o.Cases, "*"), c.name)
		return !ok
	})
}

// batches returns those that a row is measured with.
func batches(text string, all []int) (chosen []int) {
	switch text {
	case "each":
		return all
	case "ends":
		for i, n := range all {
			if i == 0 || i == len(all)-1 || n == socketBatch {
				chosen = append(chosen, n)
			}
		}
		return chosen
	}
	for number := range strings.SplitSeq(text, ",") {
		n, _ := strconv.Atoi(number)
		chosen = append(chosen, n)
	}
	return chosen
}

// differs takes a word of a row about its case.
func (c *benchCase) differs(word string) {
	key, value, _ := strings.Cut(word, "=")
	number, _ := strconv.Atoi(value)
	switch key {
	case "pauses":
		c.pauses = number
	case "share":
		c.share = number
	case "packets":
		c.packets = number
	case "drops":
		c.drop = named(c.ours).mode()
	case "-":
	default:
		*map[string]*bool{"rate": &c.perSecond, "stagger": &c.stagger, "sleeps": &c.sleeps,
			"tail": &c.tail, "halve": &c.halve, "solo": &c.solo, "wire": &c.wire,
			"reflect": &c.reflect}[key] = true
	}
}
