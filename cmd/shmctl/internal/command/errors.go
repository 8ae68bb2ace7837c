package command

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"

	"github.com/shmring/shmring/ctl"
)

// usageError is a command line that no verb can make sense of.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// wrong is a [usageError] in words.
func wrong(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// opError says to which queue, or what else has a name, a verb could not do its work.
type opError struct {
	name    string
	problem *ctl.Problem
}

func (e *opError) Error() string { return e.problem.Message }

func opFailed(name string, err error) error { return &opError{name, ctl.NewProblem(err)} }

// finish reports what a verb returned and turns it into the exit code: of several errors, the code
// is the first one's.
func finish(verb string, err error, stderr io.Writer, asJSON bool) int {
	if err == nil || errors.Is(err, syscall.EPIPE) { // the reader has seen enough
		return ctl.CodeOK
	}
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		code := ctl.CodeOK
		for _, e := range list.Unwrap() {
			if c := finish(verb, e, stderr, asJSON); code == ctl.CodeOK {
				code = c
			}
		}
		return code
	}
	var told *toldError
	if errors.As(err, &told) && len(told.text) > 0 {
		_, _ = stderr.Write(told.text)
		return told.problem.Code
	}
	e := asOpError(err, verb)
	first, _, _ := strings.Cut(verb, " ")
	e.problem.Message = strings.TrimPrefix(e.problem.Message, first+": ") // it is named once
	if e.problem.Hint == nil {
		e.problem.Hint = new(nextStep(verb, e.problem.Code))
	}
	if asJSON {
		_ = printJSON(stderr, "error", errorBody{orNil(verb), orNil(e.name), *e.problem})
	} else {
		printErrorText(stderr, verb, e)
	}
	return e.problem.Code
}

// nextStep is what to do about a failure that says nothing of it.
func nextStep(verb string, code int) string {
	switch {
	case code == ctl.CodePermission:
		return "run as the user to whom it belongs, or as root"
	case code == ctl.CodeVersion:
		return "use the shmctl of the version that made it: shmctl version"
	case code == ctl.CodeCheck:
		return "the lines say where; what its user does not need any more can be removed"
	case code == ctl.CodeNotFound && (verb == "xdp" || verb == "capture"):
		return "shmctl xdp lists the endpoints that there are"
	case code == ctl.CodeNotFound && (verb == "check" || verb == "gc"):
		return "shmctl ls lists what there is"
	}
	return helpOf(verb)
}

// helpOf says where a verb is explained.
func helpOf(verb string) string {
	return strings.Join(strings.Fields("see: shmctl "+verb+" --help"), " ")
}

func asOpError(err error, verb string) *opError {
	var op *opError
	if errors.As(err, &op) {
		return op
	}
	var usage *usageError
	if errors.As(err, &usage) {
		// The first line says what is wrong, the rest what was perhaps meant.
		message, meant, _ := strings.Cut(err.Error(), "\n")
		hint := strings.Join(append(strings.Fields(meant), helpOf(verb)), " ")
		return &opError{problem: &ctl.Problem{Message: message, Hint: &hint, Code: ctl.CodeUsage}}
	}
	return &opError{problem: ctl.NewProblem(err)}
}

func printErrorText(w io.Writer, verb string, e *opError) {
	where := strings.TrimSpace(verb + " " + printable(e.name))
	if where != "" {
		where += ": "
	}
	fmt.Fprintf(w, "shmctl: %s%s\n", where, e.problem.Message)
	if e.problem.Hint != nil {
		fmt.Fprintf(w, "  %s\n", *e.problem.Hint)
	}
}

// errorBody is an error as JSON prints it; what does not apply is null.
type errorBody struct {
	Op   *string `json:"op"`
	Name *string `json:"name"`
	ctl.Problem
}

func orNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// wantsJSON looks for the output flag by itself, for errors of a command line that was not parsed.
func wantsJSON(args []string) bool {
	for i, a := range args {
		switch {
		case a == "--":
			return false
		case a == "--json" || a == "-ojson" || a == "-o=json" || a == "--output=json":
			return true
		case len(a) > 1 && a[0] == '-' && strings.Trim(a[1:], plainLetters) == "" &&
			strings.Contains(a, "j"): // alone, or among others without a value
			return true
		case (a == "-o" || a == "--output") && i+1 < len(args) && args[i+1] == "json":
			return true
		}
	}
	return false
}
