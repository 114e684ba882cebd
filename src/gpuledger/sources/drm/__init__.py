"""AMD and Intel GPUs from files of the kernel (sysfs, hwmon, DRM fdinfo, KFD) in, Snapshots out.

May import host, model, and sources.settings, findings and device_selection.
"""
