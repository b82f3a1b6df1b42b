package cri

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

// logFile is a container's log in the form that the kubelet reads: `time stream F|P text`, one line each.
type logFile struct {
	path string
	mu   sync.Mutex
	file *os.File
}

// lineBytes is where longer lines are broken; the parts but the last are marked P.
const lineBytes = 16 << 10

func openLog(path string) (*logFile, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	l := &logFile{path: path}
	return l, l.Reopen()
}

// Reopen goes on at the log's path, where there may be no file any more.
func (l *logFile) Reopen() error {
	file, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		l.file.Close()
	}
	l.file = file
	return nil
}

func (l *logFile) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.file.Close()
}

// Attach sends both outputs of cmd to the log. closeOurs must be called after the start; logged closes at the end of both.
func (l *logFile) Attach(cmd *exec.Cmd) (logged <-chan struct{}, closeOurs func(), err error) {
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	errRead, errWrite, err := os.Pipe()
	if err != nil {
		return nil, nil, errors.Join(err, outRead.Close(), outWrite.Close())
	}
	cmd.Stdout, cmd.Stderr = outWrite, errWrite
	done := make(chan struct{})
	var both sync.WaitGroup
	both.Go(func() { l.copy("stdout", outRead) })
	both.Go(func() { l.copy("stderr", errRead) })
	go func() { both.Wait(); close(done) }()
	return done, func() { outWrite.Close(); errWrite.Close() }, nil
}

func (l *logFile) copy(stream string, from io.ReadCloser) {
	defer from.Close()
	lines := bufio.NewReaderSize(from, lineBytes)
	for {
		text, err := lines.ReadSlice('\n')
		if len(text) > 0 {
			l.write(entry(time.Now(), stream, text))
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

func entry(now time.Time, stream string, text []byte) []byte {
	tag := " P "
	if text[len(text)-1] == '\n' {
		tag, text = " F ", text[:len(text)-1]
	}
	line := now.UTC().AppendFormat(make([]byte, 0, len(text)+64), time.RFC3339Nano)
	line = append(line, ' ')
	line = append(line, stream...)
	line = append(line, tag...)
	line = append(line, text...)
	return append(line, '\n')
}

func (l *logFile) write(line []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.file.Write(line) // a full disk must not stop the container
}
