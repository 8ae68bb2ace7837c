// Command web has a server and a client of net/http that speak over shared memory.
//
//	web serve NAME    serves there, until it is interrupted
//	web get NAME      asks it for a page, and prints that
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"

	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/shm"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: web serve|get NAME")
	}
	dir, err := shm.OpenDir("")
	check(err)
	defer dir.Close()
	if os.Args[1] == "serve" {
		serve(dir, os.Args[2])
	} else {
		get(dir, os.Args[2])
	}
}

func serve(dir *shm.Dir, name string) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	l, err := fabric.Listen(dir, name)
	check(err)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s of %s\n", r.URL.Path, l.Addr())
	})}
	closed := make(chan struct{})
	context.AfterFunc(ctx, func() {
		_ = s.Shutdown(context.Background())
		close(closed)
	})
	fmt.Println("serving")
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
	<-closed // Serve returns earlier
}

func get(dir *shm.Dir, name string) {
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return fabric.Dial(ctx, dir, name)
		}}}
	defer client.CloseIdleConnections()
	r, err := client.Get("http://" + name + "/page")
	check(err)
	defer r.Body.Close()
	_, err = io.Copy(os.Stdout, r.Body)
	check(err)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
