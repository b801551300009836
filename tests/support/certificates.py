"""Certificates for tests: an authority, and what it has signed, as PEM files."""

import datetime as dt
import ssl
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sparklog.clock import SystemClock


def _now() -> dt.datetime:
    return dt.datetime.fromtimestamp(SystemClock().now_ms() / 1000, dt.UTC)


class Authority:
    """An authority whose certificates are files in a folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._ca = trustme.CA()
        self._folder = folder
        self.file = str(folder / f"{name}.pem")
        self._ca.cert_pem.write_to_path(self.file)

    def certificate(
        self, name: str, *hosts: str, expired: bool = False, common_name: str | None = None
    ) -> str:
        """A file with a key and its chain; by default for the loopback address."""
        ends = _now() - dt.timedelta(hours=1) if expired else None
        begins = ends - dt.timedelta(days=1) if ends else None
        issued = self._ca.issue_cert(
            *(hosts or ("127.0.0.1", "localhost")),
            common_name=common_name,
            organization_name="Example",
            not_before=begins,
            not_after=ends,
        )
        path = self._folder / f"{name}.pem"
        issued.private_key_and_cert_chain_pem.write_to_path(path)
        return str(path)

    def client_context(self, certificate: str | None = None) -> ssl.SSLContext:
        """What a client of this authority uses."""
        context = ssl.create_default_context(cafile=self.file)
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context

    def signed(self, name: str, subject: x509.Name) -> str:
        """A file with a key and a certificate of exactly this subject."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = _now()
        authority = x509.load_pem_x509_certificate(self._ca.cert_pem.bytes())
        own_key = serialization.load_pem_private_key(self._ca.private_key_pem.bytes(), None)
        assert isinstance(own_key, ec.EllipticCurvePrivateKey)
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .sign(own_key, hashes.SHA256())
        )
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ) + made.public_bytes(serialization.Encoding.PEM)
        path = self._folder / f"{name}.pem"
        path.write_bytes(pem)
        return str(path)
