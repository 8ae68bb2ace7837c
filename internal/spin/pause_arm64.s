#include "textflag.h"

// func pause(n uint32)
// YIELD does nothing on cores without SMT; an ISB costs about what PAUSE does on amd64.
TEXT ·pause(SB), NOSPLIT, $0-4
	MOVWU n+0(FP), R0
loop:
	CBZ R0, done
	ISB $15
	SUB $1, R0
	B   loop
done:
	RET
