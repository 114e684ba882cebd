// An API server with CustomResourceDefinitions and nothing else, for tests. It authenticates and authorizes nobody:
// the program of the package calls a core API server for that, which does not exist here.
package main

import (
	"log"
	"os"

	"github.com/spf13/pflag"
	"k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	"k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	naming "k8s.io/apiserver/pkg/endpoints/openapi"
	generic "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes/scheme"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	o := options.NewCustomResourceDefinitionsServerOptions(os.Stdout, os.Stderr)
	o.AddFlags(pflag.CommandLine)
	pflag.Parse()
	o.RecommendedOptions.Authentication = nil
	o.RecommendedOptions.Authorization = nil
	o.RecommendedOptions.Admission = nil
	check(o.ServerRunOptions.ComponentGlobalsRegistry.Set())
	check(o.Complete())
	check(o.Validate())
	config, err := o.Config()
	check(err)
	// `kubectl explain` shows the schemas of custom resources, which are only published with this.
	namer := naming.NewDefinitionNamer(apiserver.Scheme, scheme.Scheme)
	config.GenericConfig.OpenAPIConfig = generic.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	completed := config.Complete()
	// kubectl finds the custom resources at /apis, which a core API server has otherwise.
	completed.GenericConfig.EnableDiscovery = true
	server, err := completed.New(generic.NewEmptyDelegate())
	check(err)
	check(server.GenericAPIServer.PrepareRun().RunWithContext(generic.SetupSignalContext()))
}
