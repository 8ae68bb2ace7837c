#include "textflag.h"

// func pause(n uint32)
TEXT ·pause(SB), NOSPLIT, $0-4
	MOVL n+0(FP), CX
loop:
	TESTL CX, CX
	JEQ  done
	PAUSE
	DECL CX
	JMP  loop
done:
	RET
