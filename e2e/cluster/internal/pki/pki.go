// Package pki makes the cluster's certificates: one authority, and a certificate for everyone who serves or calls.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// validFor is far longer than a test cluster lives, and short enough that a forgotten one stops working.
const validFor = 30 * 24 * time.Hour

// Authority signs for the cluster. Its files lie in Dir: ca.crt, ca.key and a pair for each name.
type Authority struct {
	Dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Identity is who a certificate speaks for: Kubernetes reads the common name as the user, organisations as groups.
type Identity struct {
	User   string
	Groups []string
	Hosts  []string // names and addresses it serves at; none for a client
}

// Create makes a new authority in dir.
func Create(dir string) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := certificate(Identity{User: "tandem-cluster-ca"})
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign the cluster's authority: %w", err)
	}
	if err := writePair(dir, "ca", der, key); err != nil {
		return nil, err
	}
	return Open(dir)
}

// Open loads the authority that Create left in dir.
func Open(dir string) (*Authority, error) {
	certDER, err := readBlock(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, err
	}
	keyDER, err := readBlock(filepath.Join(dir, "ca.key"))
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(certDER)
	if err != nil {
		return nil, err
	}
	key, err := x509.ParseECPrivateKey(keyDER)
	if err != nil {
		return nil, err
	}
	return &Authority{Dir: dir, cert: cert, key: key}, nil
}

// Issue writes NAME.crt and NAME.key for an identity, good for serving and for calling.
func (a *Authority) Issue(name string, who Identity) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, certificate(who), a.cert, key.Public(), a.key)
	if err != nil {
		return fmt.Errorf("sign a certificate for %s: %w", name, err)
	}
	return writePair(a.Dir, name, der, key)
}

// Cert and Key are the files of a name.
func (a *Authority) Cert(name string) string { return filepath.Join(a.Dir, name+".crt") }

// Key is the file with the private key of a name.
func (a *Authority) Key(name string) string { return filepath.Join(a.Dir, name+".key") }

func certificate(who Identity) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	cert := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: who.User, Organization: who.Groups},
		NotBefore:    time.Now().Add(-time.Hour), // clocks of containers and hosts may differ a little
		NotAfter:     time.Now().Add(validFor),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, host := range who.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			cert.IPAddresses = append(cert.IPAddresses, ip)
		} else {
			cert.DNSNames = append(cert.DNSNames, host)
		}
	}
	return cert
}

func writePair(dir, name string, der []byte, key *ecdsa.PrivateKey) error {
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	if err := writeBlock(filepath.Join(dir, name+".key"), "EC PRIVATE KEY", keyDER); err != nil {
		return err
	}
	return writeBlock(filepath.Join(dir, name+".crt"), "CERTIFICATE", der)
}

func writeBlock(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

func readBlock(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s holds no PEM block", path)
	}
	return block.Bytes, nil
}
