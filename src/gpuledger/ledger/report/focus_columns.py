"""The columns of FOCUS, the FinOps Open Cost and Usage Specification, in its versions 1.3 and 1.2.

A column's value is a template for `str.format_map`; an empty text is null. Columns that FOCUS does not define
have the prefix `x_`, as it requires.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_SHARED: Final = {
    "BilledCost": "{cost:f}",
    "BillingAccountId": "{account}",
    "BillingAccountName": "{account}",
    "BillingCurrency": "{currency}",
    "BillingPeriodEnd": "{month_ends}",
    "BillingPeriodStart": "{month_begins}",
    "ChargeCategory": "Usage",
    # No charge corrects an earlier invoice, and none is on an invoice yet.
    "ChargeClass": "",
    "InvoiceId": "",
    "ChargeDescription": "{description}",
    "ChargeFrequency": "Usage-Based",
    "ChargePeriodEnd": "{ends}",
    "ChargePeriodStart": "{begins}",
    "ConsumedQuantity": "{consumed:f}",
    "ConsumedUnit": "{sku.unit}",
    "ContractedCost": "{cost:f}",
    "ContractedUnitPrice": "{unit_price}",
    "EffectiveCost": "{cost:f}",
    "InvoiceIssuerName": "gpuledger",
    "ListCost": "{cost:f}",
    "ListUnitPrice": "{unit_price}",
    "PricingCategory": "Standard",
    "PricingQuantity": "{quantity:f}",
    "PricingUnit": "{sku.unit}",
    "ProviderName": "gpuledger",
    "PublisherName": "gpuledger",
    "ResourceId": "{resource}",
    "ResourceName": "{resource_name}",
    "ResourceType": "{sku.service.resource}",
    "ServiceCategory": "{sku.service.category}",
    "ServiceName": "{sku.service.name}",
    "ServiceSubcategory": "{sku.service.subcategory}",
    "SkuId": "{sku.name}",
    "SkuMeter": "{sku.meter}",
    "SkuPriceDetails": "{price_details}",
    "SkuPriceId": "{price_id}",
    "x_Account": "{own_account}",
    "x_Basis": "{basis}",
    "x_BoundMicroseconds": "{time_bound}",
    "x_BoundMillijoules": "{bound}",
    "x_Co2Grams": "{grams}",
    "x_FractionKnown": "{fraction_known}",
    "x_GpuMicroseconds": "{microseconds}",
    "x_HighKwh": "{high}",
    "x_LowKwh": "{low}",
    "x_MeasuredKwh": "{low}",
    "x_Method": "{method}",
    "x_Millijoules": "{millijoules}",
    "x_PriceEntry": "{price_entry}",
    "x_PriceList": "{price_list}",
}
# Those of reports with tokens.
_OF_TOKENS: Final = {"x_BoundQuantity": "{count_bound}", "x_ServedModel": "{served_model}"}
# Of an allocated charge, all dimensions but these five are those of its origin charge: the use of one Gpu, of
# one Sku, on one day, at one price.
_ALLOCATED: Final = {
    "AllocatedMethodDetails": "{method_details}",
    "AllocatedMethodId": "{basis}",
    "AllocatedResourceId": "{owner_id}",
    "AllocatedResourceName": "{owner_name}",
    "AllocatedTags": "{owner_tags}",
}
_BY_VERSION: Final = {
    "1.3": {
        **_ALLOCATED,
        "HostProviderName": "gpuledger",
        "ServiceProviderName": "gpuledger",
        "Tags": "{resource_tags}",
    },
    # Without split cost allocation: the owner is in the tags and in columns with a prefix.
    "1.2": {
        **{f"x_{name}": value for name, value in _ALLOCATED.items() if name != "AllocatedTags"},
        "RegionId": "",
        "RegionName": "",
        "SubAccountId": "{namespace}",
        "SubAccountName": "{namespace}",
        "Tags": "{all_tags}",
    },
}


def _in_order(columns: Mapping[str, str]) -> dict[str, str]:
    return dict(sorted(columns.items(), key=lambda item: (item[0].startswith("x_"), item[0])))


def focus_columns(version: str, *, has_tokens: bool = False) -> Mapping[str, str]:
    """The columns of a version, by name, with their templates."""
    more = _OF_TOKENS if has_tokens else {}
    return _in_order({**_SHARED, **_BY_VERSION[version], **more})


# The codes of ISO 4217 that are in use, without those of metals, funds and tests.
CURRENCIES: Final = frozenset(
    """
    AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BGN BHD BIF BMD BND BOB BRL BSD BTN BWP BYN BZD CAD
    CDF CHF CLP CNY COP CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF
    GTQ GYD HKD HNL HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD KZT LAK
    LBP LKR LRD LSL LYD MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD
    OMR PAB PEN PGK PHP PKR PLN PYG QAR RON RSD RUB RWF SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN
    SVC SYP SZL THB TJS TMT TND TOP TRY TTD TWD TZS UAH UGX USD UYU UZS VES VND VUV WST XAF XCD XCG XOF
    XPF YER ZAR ZMW ZWG
    """.split()  # noqa: SIM905  (a table to compare with the standard, not 160 quoted texts)
)
