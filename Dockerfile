# The image holds one static binary and nothing else: no shell, no package manager, no root.
#
#   docker build -t ojs-pg .
#
# Where no builder image can be pulled, build the binary first and name any local image that has a shell:
#
#   make build
#   docker build --build-arg BUILD_IMAGE=... --build-arg PREBUILT=dist/ojs-pg -t ojs-pg .

ARG BUILD_IMAGE=golang:1.26-bookworm
FROM ${BUILD_IMAGE} AS build
WORKDIR /src
COPY . .
ARG PREBUILT=
ARG VERSION=
RUN set -eu; \
    mkdir -p /out/etc/ssl/certs; \
    if [ -n "$PREBUILT" ]; then \
        cp "$PREBUILT" /out/ojs-pg; \
    else \
        CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /out/ojs-pg ./cmd/ojs-pg; \
    fi; \
    chmod 755 /out/ojs-pg; \
    # A server far away is reached with sslmode=verify-full, which needs the usual authorities.
    if [ -f /etc/ssl/certs/ca-certificates.crt ]; then cp /etc/ssl/certs/ca-certificates.crt /out/etc/ssl/certs/; fi

FROM scratch
COPY --from=build /out/ /
USER 65532:65532
ENV OJS_LISTEN=0.0.0.0:8080
EXPOSE 8080
HEALTHCHECK --interval=5s --timeout=6s --start-period=20s --retries=3 CMD ["/ojs-pg", "health"]
ENTRYPOINT ["/ojs-pg"]
CMD ["serve"]
