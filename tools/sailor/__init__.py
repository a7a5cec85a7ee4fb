"""The comparison with Sailor (SOSP 25): its profiles, scenarios and plans beside ours."""
