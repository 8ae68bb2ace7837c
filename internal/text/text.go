// Package text has words of messages: names of numbers, and what is said of other processes, their
// names and what they wrote, which may hold anything.
package text

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable returns the text with everything escaped that a terminal or a log should not be given:
// control characters, and what is no UTF-8. It is for what others wrote or named.
func Printable(text string) string {
	odd := func(r rune) bool { return !unicode.IsPrint(r) }
	if utf8.ValidString(text) && !strings.ContainsFunc(text, odd) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if unicode.IsPrint(r) && r != utf8.RuneError {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		}
	}
	return b.String()
}

// Name is the name of a number that has one, by the number, or what it is with the number.
func Name[N ~int | ~uint8 | ~uint32](n N, what string, names ...string) string {
	if n >= 0 && uint64(n) < uint64(len(names)) && names[n] != "" {
		return names[n]
	}
	return fmt.Sprintf("%s %d", what, n)
}

// Process names a process. If it is in another PID namespace than this one, here, the name says
// which, since the number means another process here; 0 is one that is not known.
func Process(pid int, namespace, here uint64) string {
	switch namespace {
	case here:
		return fmt.Sprintf("process %d", pid)
	case 0:
		return fmt.Sprintf("process %d of an unknown PID namespace", pid)
	}
	return fmt.Sprintf("process %d of PID namespace %d", pid, namespace)
}
