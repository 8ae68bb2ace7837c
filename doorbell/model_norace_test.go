//go:build !race

package doorbell_test

const raceBuild = false
