"""Certificates for the roles of a deployment, and TLS 1.3 contexts with mutual authentication.

One directory per role, made by `autorep keys` and carried to that role's machine:

    ca/      certificate.pem key.pem           signs the others; keep it offline
    party0/  certificate.pem key.pem ca.pem    also party1/, dealer/
    client/  ca.pem                            what clients need to trust the servers

A certificate names its role as a DNS name of its own, beside the host names and addresses of the machine; a peer is
accepted only if the authority signed it and the role is the expected one.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from autorep.errors import ConfigError

ROLES = ("party0", "party1", "dealer")


def make_keys(directory: Path, hosts: Mapping[str, Sequence[str]], days: int = 825) -> None:
    """Write a fresh authority and one certificate per role; refuses to overwrite an existing authority.

    hosts: role -> host names and addresses its machine is reached at.
    """
    if (directory / "ca" / "key.pem").exists():
        raise ConfigError(f"{directory}: there is a certificate authority already; choose another --out or remove it")
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = _name("autorep private authority")
    builder = _builder(authority_name, authority_name, authority_key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), False)
    authority = builder.sign(authority_key, hashes.SHA256())
    _write(directory / "ca", authority, authority_key)
    for role in ROLES:
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(role), *map(_general_name, hosts.get(role, ()))]
        builder = _builder(_name(role), authority_name, key.public_key(), days)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs=False), critical=True)
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
        builder = builder.add_extension(issuer, critical=False)
        _write(directory / role, builder.sign(authority_key, hashes.SHA256()), key)
    for role in (*ROLES, "client"):
        (directory / role).mkdir(exist_ok=True)
        (directory / role / "ca.pem").write_bytes(authority.public_bytes(serialization.Encoding.PEM))


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


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


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


def _write(directory: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "certificate.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with open(os.open(directory / "key.pem", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(text)
