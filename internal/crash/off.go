//go:build !shmring_steps

package crash

// On says whether the program was built with the tag shmring_steps.
const On = false

// At is where a process may be killed, in a program that was built with the tag.
func At(Label) {}

// Dying sets what is called before the process dies at a step.
func Dying(func()) {}

// Passing sets what is called at a passage of a step.
func Passing(Label, uint64, func()) {}
