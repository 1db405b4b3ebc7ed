"""Certificates for the roles of a deployment, and TLS 1.3 contexts with mutual authentication.

Each role makes its own key on its own machine and asks the authority to sign; no private key ever travels:

    authority   ca/      certificate.pem key.pem                `autorep keys authority`, signs; keep it offline
    role        party0/  key.pem request.pem                    `autorep keys request`, on the role's machine
    authority            request.pem -> certificate.pem ca.pem  `autorep keys sign`, carried back to the role

`autorep keys --out DIR` does all of it at once, for roles that share one machine.

A certificate names its role as a DNS name of its own, beside the host names and addresses of the machine; a peer is
accepted only if the authority signed it and the role is the expected one. So no host may be called like a role.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import re
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from autorep import private
from autorep.errors import ConfigError
from autorep.settings import nearest

ROLES = ("party0", "party1", "dealer")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*\.?")


def make_keys(directory: Path, hosts: Mapping[str, Sequence[str]], days: int = 825) -> None:
    """An authority and every role's key and certificate on one machine; refuses to overwrite an authority.

    hosts: role -> host names and addresses its machine is reached at.
    """
    make_authority(directory / "ca", days)
    for role in ROLES:
        make_request(directory / role, role, hosts.get(role, ()))
        sign_request(directory / "ca", directory / role / "request.pem", role, directory / role, days)
        (directory / role / "request.pem").unlink()
    private.write(directory / "client" / "ca.pem", (directory / "ca" / "certificate.pem").read_bytes())


def make_authority(directory: Path, days: int = 825) -> None:
    """A new certificate authority; refuses to overwrite one."""
    if (directory / "key.pem").exists():
        raise ConfigError(f"{directory}: there is a certificate authority already; choose another --out or remove it")
    key, name = ec.generate_private_key(ec.SECP256R1()), _name("autorep private authority")
    builder = _builder(name, name, key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
    _write_key(directory, key)
    _write_certificate(directory / "certificate.pem", builder.sign(key, hashes.SHA256()))


def make_request(directory: Path, role: str, hosts: Sequence[str]) -> str:
    """A role's own key, and the request to sign it; returns the key's fingerprint. The key stays here."""
    if (directory / "key.pem").exists():
        raise ConfigError(f"{directory}: there is a key already; choose another --out or remove it")
    names: list[x509.GeneralName] = [x509.DNSName(_known(role)), *map(_host, hosts)]
    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateSigningRequestBuilder().subject_name(_name(role))
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    request = builder.sign(key, hashes.SHA256())
    _write_key(directory, key)
    private.write(directory / "request.pem", request.public_bytes(serialization.Encoding.PEM))
    return _fingerprint(request)


def sign_request(authority: Path, request: Path, role: str, out: Path, days: int = 825) -> tuple[str, list[str]]:
    """Sign a request that must be for `role`; writes certificate.pem and ca.pem.

    Returns the fingerprint of the key, to compare with what the role's operator reads out, and the hosts it names.
    """
    asked = _read_request(request)
    try:
        key = serialization.load_pem_private_key((authority / "key.pem").read_bytes(), None)
        certificate = x509.load_pem_x509_certificate((authority / "certificate.pem").read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{authority}: not a certificate authority of `autorep keys` ({error})") from None
    names = _requested_names(request, asked)
    if names[:1] != [_known(role)]:
        raise ConfigError(
            f"{request}: asks to be {names[0] if names else 'nobody'}, not {role}; sign for that role only"
        )
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    public = asked.public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    builder = _builder(_name(role), certificate.subject, public, days)
    alternatives = [x509.DNSName(role), *map(_host, names[1:])]
    builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs=False), critical=True)
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    builder = builder.add_extension(issuer, critical=False)
    _write_certificate(out / "certificate.pem", builder.sign(key, hashes.SHA256()))
    _write_certificate(out / "ca.pem", certificate)
    return _fingerprint(asked), names[1:]


def server_context(role_directory: Path) -> ssl.SSLContext:
    """TLS 1.3 for the accepting end of a link; the other end must show a certificate of the same authority."""
    return _context(role_directory, ssl.PROTOCOL_TLS_SERVER)


def client_context(role_directory: Path) -> ssl.SSLContext:
    """TLS 1.3 for the connecting end of a link; checks authority and role of the other end, shows its own."""
    return _context(role_directory, ssl.PROTOCOL_TLS_CLIENT)


def peer_roles(connection: ssl.SSLSocket) -> set[str]:
    """The roles in the verified certificate of the other end."""
    certificate = connection.getpeercert() or {}
    names = cast("tuple[tuple[str, str], ...]", certificate.get("subjectAltName", ()))
    return {value for kind, value in names if kind == "DNS"} & set(ROLES)


def _context(directory: Path, protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # connections last for days; resumption would only add state
    try:
        context.load_cert_chain(directory / "certificate.pem", directory / "key.pem")
        context.load_verify_locations(directory / "ca.pem")
    except FileNotFoundError:
        raise ConfigError(
            f"{directory}: certificate.pem, key.pem and ca.pem must be here; `autorep keys` makes them"
        ) from None
    except ssl.SSLError as error:
        raise ConfigError(f"{directory}: certificate or key cannot be used ({error.reason})") from error
    return context


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _known(role: str) -> str:
    if role not in ROLES:
        raise ConfigError(f"role {role!r}; {nearest(role, ROLES)}")
    return role


def _host(host: str) -> x509.GeneralName:
    """A host name or address for a certificate; a role's name or a pattern would let one machine pass for another."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if host.lower().rstrip(".") in ROLES:
        raise ConfigError(f"host {host!r} has the name of a role, so this machine could pass for it; use another name")
    if not _HOST.fullmatch(host):
        raise ConfigError(f"host {host!r} is neither an address nor a host name (patterns are not allowed)")
    return x509.DNSName(host)


def _read_request(path: Path) -> x509.CertificateSigningRequest:
    try:
        request = x509.load_pem_x509_csr(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not a signing request of `autorep keys request` ({error})") from None
    if not request.is_signature_valid or not isinstance(request.public_key(), ec.EllipticCurvePublicKey):
        raise ConfigError(f"{path}: the request is not signed by the key it names; make it anew")
    return request


def _requested_names(path: Path, request: x509.CertificateSigningRequest) -> list[str]:
    """The role first, then hosts and addresses."""
    try:
        names = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise ConfigError(f"{path}: names no role; make it with `autorep keys request`") from None
    return [str(name.value) for name in names]


def _fingerprint(request: x509.CertificateSigningRequest) -> str:
    """SHA-256 of the public key, in groups of four digits."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    digest = hashlib.sha256(request.public_key().public_bytes(serialization.Encoding.DER, form)).hexdigest()
    return " ".join(digest[start : start + 4] for start in range(0, 32, 4))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write_key(directory: Path, key: ec.EllipticCurvePrivateKey) -> None:
    form, encryption = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    private.write(directory / "key.pem", key.private_bytes(serialization.Encoding.PEM, form, encryption))


def _write_certificate(path: Path, certificate: x509.Certificate) -> None:
    private.write(path, certificate.public_bytes(serialization.Encoding.PEM))
