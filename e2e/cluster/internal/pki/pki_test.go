package pki

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
)

func TestWhatIsIssuedIsTrusted(t *testing.T) {
	authority, err := Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := authority.Issue("server", Identity{User: "me", Groups: []string{"us"}, Hosts: []string{"10.96.0.1", "a.svc"}}); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(authority.Cert("server"), authority.Key("server"))
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(authority.cert)
	for _, host := range []string{"10.96.0.1", "a.svc"} {
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host}); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
	if leaf.Subject.CommonName != "me" || leaf.Subject.Organization[0] != "us" {
		t.Errorf("the subject is %s", leaf.Subject)
	}
}
