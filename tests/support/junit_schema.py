"""The schema of JUnit XML, as its readers describe it: Ant's ``junitreport``, Jenkins, GitLab.

None of them publishes one that all hold to. This one is the narrowest reading: what Ant requires is required, a case
has one outcome at most, counts are numbers, times are seconds, a time stamp has no zone.
"""

from __future__ import annotations

import xmlschema

_COUNTS = "".join(f'<xs:attribute name="{name}" type="xs:nonNegativeInteger" use="required"/>' for name in (
    "tests", "failures", "errors"
))  # fmt: skip

_OUTCOME = """
<xs:complexType><xs:simpleContent><xs:extension base="xs:string">
  <xs:attribute name="type" type="xs:string" use="required"/>
  <xs:attribute name="message" type="xs:string"/>
</xs:extension></xs:simpleContent></xs:complexType>
"""

XSD = f"""<?xml version="1.0" encoding="UTF-8"?>
<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">
  <xs:simpleType name="seconds">
    <xs:restriction base="xs:decimal"><xs:minInclusive value="0"/><xs:fractionDigits value="3"/></xs:restriction>
  </xs:simpleType>
  <xs:simpleType name="moment">
    <xs:restriction base="xs:dateTime"><xs:pattern value="[0-9-]{{10}}T[0-9:]{{8}}"/></xs:restriction>
  </xs:simpleType>
  <xs:element name="testsuites">
    <xs:complexType>
      <xs:sequence><xs:element ref="testsuite" minOccurs="0" maxOccurs="unbounded"/></xs:sequence>
      <xs:attribute name="name" type="xs:string"/>
      <xs:attribute name="time" type="seconds"/>
      {_COUNTS}
    </xs:complexType>
  </xs:element>
  <xs:element name="testsuite">
    <xs:complexType>
      <xs:sequence><xs:element ref="testcase" minOccurs="0" maxOccurs="unbounded"/></xs:sequence>
      <xs:attribute name="name" type="xs:string" use="required"/>
      <xs:attribute name="timestamp" type="moment" use="required"/>
      <xs:attribute name="time" type="seconds" use="required"/>
      <xs:attribute name="skipped" type="xs:nonNegativeInteger"/>
      {_COUNTS}
    </xs:complexType>
  </xs:element>
  <xs:element name="testcase">
    <xs:complexType>
      <xs:sequence>
        <xs:choice minOccurs="0">
          <xs:element name="skipped"/>
          <xs:element name="error">{_OUTCOME}</xs:element>
          <xs:element name="failure">{_OUTCOME}</xs:element>
        </xs:choice>
        <xs:element name="system-out" type="xs:string" minOccurs="0"/>
        <xs:element name="system-err" type="xs:string" minOccurs="0"/>
      </xs:sequence>
      <xs:attribute name="name" type="xs:string" use="required"/>
      <xs:attribute name="classname" type="xs:string" use="required"/>
      <xs:attribute name="time" type="seconds" use="required"/>
    </xs:complexType>
  </xs:element>
</xs:schema>
"""


def validate_junit(path: str) -> None:
    """Raises where the file is not what the schema says."""
    xmlschema.XMLSchema(XSD).validate(path)
